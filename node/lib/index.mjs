import earrrl from "./index.cjs";

export const { Decision, EarrrlStore, Limiter, RateLimits } = earrrl;
