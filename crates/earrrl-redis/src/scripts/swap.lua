-- Replaces a record by its converted form, unless the record has changed meanwhile. KEYS[1] is the
-- record's key, ARGV[1] the old record, ARGV[2] the new one (empty to delete it), ARGV[3] its
-- lifetime in milliseconds. KEYS[2], if given, is the key for the record of another version of the
-- rule. It must still hold ARGV[4] (empty for nothing), which the old record then replaces for ARGV[5]
-- milliseconds.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if KEYS[2] then
  if (redis.call('GET', KEYS[2]) or '') ~= ARGV[4] then return 0 end
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[5])
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
