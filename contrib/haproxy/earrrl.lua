-- HAProxy asks earrrl about a request before it passes it on. Needs HAProxy 2.6 or later.
-- Where to ask: the frontend `ask`.
local ask = "unix@/run/haproxy/earrrl.sock"

local function first(headers, name)
    local values = headers and headers[name]
    return values and (values[0] or values[1])
end

core.register_action("earrrl", {"http-req"}, function(txn)
    -- All of these: what is not written here is the client's own.
    local headers = txn.http:req_get_headers()
    for _, name in ipairs({"x-original-method", "x-original-uri", "content-length", "transfer-encoding",
                           "connection", "expect", "upgrade", "x-ratelimit-action"}) do
        headers[name] = nil
    end
    local path = txn.sf:path()
    local query = txn.sf:query()
    headers["x-forwarded-for"] = {[0] = txn.sf:src()}
    headers["x-forwarded-method"] = {[0] = txn.sf:method()}
    headers["x-forwarded-uri"] = {[0] = query ~= "" and path .. "?" .. query or path}
    headers["x-forwarded-proto"] = {[0] = txn.sf:ssl_fc() == 1 and "https" or "http"}
    -- Where earrrl has a check_token: headers["authorization"] = {[0] = "Bearer …"}
    local answer = core.httpclient():get{
        url = "http://earrrl/v1/authz", dst = ask, headers = headers,
    }
    -- No answer, or one that is none of earrrl's verdicts: serve without it.
    if not answer or not first(answer.headers, "x-ratelimit-action") then
        return
    end
    for _, name in ipairs({"ratelimit", "ratelimit-policy", "retry-after", "x-ratelimit-action"}) do
        local value = first(answer.headers, name)
        if value then
            txn:set_var("txn.earrrl_" .. name:gsub("-", "_"), value)
        end
    end
    if answer.status ~= 200 then
        txn:set_var("txn.earrrl_denied", answer.status)
        txn:set_var("txn.earrrl_body", answer.body)
    end
end, 0)
