// Rate limits in process: exact, bounded in memory, and shared by all processes of a host that open one file.
"use strict";
const { ManualClock } = require("./clock.cjs");
const { Decision, Engine, Limiter } = require("./limiter.cjs");
const { RateLimits } = require("./rate_limits.cjs");
const { EarrrlStore, EarrrlThrottlerStorage, fastifyStore } = require("./stores.cjs");

module.exports = { Decision, EarrrlStore, EarrrlThrottlerStorage, Engine, Limiter, ManualClock, RateLimits, fastifyStore };
