import earrrl from "./index.cjs";

export const { Decision, EarrrlStore, EarrrlThrottlerStorage, Engine, Limiter, ManualClock, RateLimits, fastifyStore } = earrrl;
export default earrrl;
