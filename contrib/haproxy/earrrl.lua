-- HAProxy asks earrrl about a request before it passes it on. Needs HAProxy 2.6 or later.
-- The address of the frontend `ask`. TCP, since HAProxy mostly runs as its own user in a chroot.
local ask = "127.0.0.1:8085"
-- Each header that a rule names, in lower case, as {"x-api-key", "user-agent"}.
local named = {}
-- Where earrrl has a check_token: "Bearer …".
local authorization = nil
-- What earrrl is asked must fit into a buffer (tune.bufsize), as the request itself.
local longest = 12000
-- HAProxy 2.6 crashes if its question has about a hundred headers.
local most = 64

local function first(headers, name)
    local values = headers and headers[name]
    return values and (values[0] or values[1])
end

-- Only what is written here is sent: a client's own X-Forwarded-* would be believed.
local function question(txn)
    local given = txn.http:req_get_headers()
    local headers = {
        ["x-forwarded-for"] = {[0] = txn.sf:src()},
        ["x-forwarded-method"] = {[0] = txn.sf:method()},
        ["x-forwarded-uri"] = {[0] = txn.sf:path()},
        ["x-forwarded-host"] = {[0] = first(given, "host") or ""},
        ["x-forwarded-proto"] = {[0] = txn.sf:ssl_fc() == 1 and "https" or "http"},
    }
    for _, name in ipairs(named) do
        headers[name] = given[name]
    end
    if authorization then
        headers["authorization"] = {[0] = authorization}
    end
    local length, count = 0, 0
    for name, values in pairs(headers) do
        for _, value in pairs(values) do
            length, count = length + #name + #value + 4, count + 1
        end
    end
    return headers, length <= longest and count <= most
end

core.register_action("earrrl", {"http-req"}, function(txn)
    local headers, fits = question(txn)
    if not fits then
        txn:set_var("txn.earrrl_denied", 431)
        return
    end
    local answer = core.httpclient():get{
        url = "http://earrrl/v1/authz", dst = ask, headers = headers,
    }
    local status = answer and answer.status or 0
    local action = answer and first(answer.headers, "x-ratelimit-action")
    -- No answer, an error of the server, or a token that it does not accept: serve without limits.
    -- Another refusal (4xx) is a denial.
    if not action and (status < 200 or status == 401 or status >= 500) then
        return
    end
    for _, name in ipairs({"ratelimit", "ratelimit-policy", "retry-after", "x-ratelimit-action"}) do
        local value = first(answer.headers, name)
        if value then
            txn:set_var("txn.earrrl_" .. name:gsub("-", "_"), value)
        end
    end
    if status ~= 200 then
        txn:set_var("txn.earrrl_denied", status)
        txn:set_var("txn.earrrl_body", answer.body)
    end
    -- action = "delay": the request waits here.
    local delay = tonumber(first(answer.headers, "x-ratelimit-delay") or 0)
    if status == 200 and delay and delay > 0 then
        core.msleep(math.ceil(delay * 1000))
    end
end, 0)
