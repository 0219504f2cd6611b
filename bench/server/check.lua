-- wrk: POST /v1/check of one of 100 000 keys.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
function request()
   local body = string.format('{"rule":"default","key":"user:%d"}', math.random(100000))
   return wrk.format(nil, "/v1/check", nil, body)
end
