#!/usr/bin/env python3
"""Writes periods.csv: periods of calendars and the seconds at which they begin and end, by Python's zoneinfo and dateutil.

A period begins at the first instant whose local date is its first date. Where midnight does not exist or dates are out of
order, that instant is found by looking at every minute of two days.
"""

import csv
import pathlib
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from dateutil.relativedelta import MO, relativedelta

# Daylight saving time of an hour and half an hour, north and south, at midnight and one minute after it; a day that
# does not exist; offsets of half and three quarters of an hour.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Chatham",
]
# The past, since governments change the future of their time zones, and machines have databases of different ages.
YEARS = range(2004, 2025)


def begins(day, zone):
    """The second at which a date begins."""
    zone = ZoneInfo(zone)
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    second = int(midnight.timestamp())
    is_there = datetime.fromtimestamp(second, zone).replace(tzinfo=None) == midnight.replace(tzinfo=None)
    before = datetime.fromtimestamp(second - 1, zone).date()
    if is_there and before == day - timedelta(days=1):
        return second
    around = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) - 86400
    minutes = range(around, around + 2 * 86400, 60)
    return next(minute for minute in minutes if datetime.fromtimestamp(minute, zone).date() >= day)


def days(zone):
    """The days that are longer or shorter than others, and those beside them."""
    starts = [date(YEARS[0], 1, 1) + timedelta(days=n) for n in range(365 * len(YEARS))]
    odd = {
        near
        for n, day in enumerate(starts)
        if begins(day + timedelta(days=1), zone) - begins(day, zone) != 86400
        for near in (n - 1, n, n + 1)
    }
    return [(starts[n], starts[n] + timedelta(days=1)) for n in sorted(odd) if n >= 0]


def weeks():
    """The weeks at the turns of the years, of which some are the 53rd."""
    for year in YEARS:
        monday = date(year, 12, 28) + relativedelta(weekday=MO(-1))
        for week in range(-1, 2):
            start = monday + timedelta(weeks=week)
            yield start, start + timedelta(weeks=1)


def months(day):
    start = date(YEARS[0], 1, 1)
    for n in range(12 * len(YEARS)):
        yield start + relativedelta(months=n, day=day), start + relativedelta(months=n + 1, day=day)


def years(month, day):
    start = date(YEARS[0], month, 1)
    for n in range(len(YEARS)):
        yield start + relativedelta(years=n, day=day), start + relativedelta(years=n + 1, day=day)


def periods():
    for zone in ZONES:
        yield f"day tz={zone}", zone, days(zone)
        yield f"week tz={zone}", zone, weeks()
        yield f"year tz={zone}", zone, years(1, 1)
        for day in [1, 15, 29, 30, 31] if zone in ("UTC", "Australia/Lord_Howe", "Europe/Berlin") else [1]:
            yield f"month from={day} tz={zone}", zone, months(day)
    for month, day in [(2, 29), (4, 6), (12, 31)]:
        yield f"year from={month:02}-{day:02} tz=Europe/Berlin", "Europe/Berlin", years(month, day)


with open(pathlib.Path(__file__).parent / "periods.csv", "w", newline="") as file:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["period", "first date", "begins", "ends"])
    for text, zone, pairs in periods():
        for first, following in pairs:
            table.writerow([text, first, begins(first, zone), begins(following, zone)])
