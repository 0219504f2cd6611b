-- Replaces a record by its converted form, unless the record has changed meanwhile. KEYS[1] is the
-- record's key, ARGV[1] the old record, ARGV[2] the new one (empty to delete it), ARGV[3] its
-- lifetime in milliseconds.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
