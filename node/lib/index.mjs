import earrrl from "./index.cjs";

export const { Decision, EarrrlStore, Engine, Limiter, RateLimits } = earrrl;
