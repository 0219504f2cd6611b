"""A FastAPI service with one handler, which has a limit of its own, under a prefix of a mounted application."""

import os

from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse

from earrrl import RateLimits

limits = RateLimits()
app, part, router = FastAPI(), FastAPI(), APIRouter()


@router.get("/login")
@limits.limit("9999/year", name="login")
async def login():
    return PlainTextResponse("REACHED")


@app.get("/pid")
async def pid():
    return os.getpid()


part.include_router(router)
app.mount("/v1", part)
