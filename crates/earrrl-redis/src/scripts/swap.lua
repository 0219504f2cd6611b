-- Puts a converted record in the place of the one it was made from, if that is still there. KEYS[1]
-- the record, ARGV[1] as it was, ARGV[2] as it will be (empty: gone), ARGV[3] milliseconds to live.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
