"""
Lua scripts for counters on a Redis server: each is one step there, as no other command comes between.

A budget is a hash of `u` (used) and `h` (held), a minute a hash of `l` (level, in units of a sixty-millionth) and `t` (when, in microseconds).
Numbers are integers below 2**53, which Lua's are exact for. All names have the tag `{unilect}`, so that a cluster has them in one place.
"""

_CLOCK = """
local time = redis.call('TIME')
local now = (tonumber(time[1]) - 1735689600) * 1000000 + tonumber(time[2])
local function level(key, most)
  local found = redis.call('HMGET', key, 'l', 't')
  -- a clock that was put back lets nothing out, and the bucket goes on from there
  local passed = math.max(0, math.min(now - tonumber(found[2] or now), 120000000))
  -- what is in it never takes longer than two minutes to leak, also after the limit was lowered
  local full = math.min(tonumber(found[1] or 0), 120000000 * most)
  return math.max(0, full - passed * most)
end
local function fill(key, most, to)
  local full = math.max(0, math.min(to, 120000000 * most))
  redis.call('HSET', key, 'l', string.format('%.0f', full), 't', string.format('%.0f', now))
  redis.call('PEXPIRE', key, 180000)
end
-- a budget stays for two days after its end, or from now on: this server's clock and that of who asks may be wrong, or put back
local function keep(key, ends)
  if ends ~= '0' then
    local least = (now / 1000 + 1735689600000) + 172800000
    redis.call('PEXPIREAT', key, string.format('%.0f', math.max(tonumber(ends) + 172800000, least)))
  end
end
"""

#: Of each counter there are five arguments: whether it is a minute, its limit, what to hold, a number (what must be free, or what was used), and
#: when it ends (Unix ms, 0 for never). What is returned of it is what was used, what is held, and how long to wait (in microseconds; -1: no time
#: alone brings room).
_LOOK = (
    _CLOCK
    + """
local function look(first, before)
  local ok, states = 1, {}
  for i = first, #KEYS do
    local a = before + (i - first) * 5
    local most, room = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 4])
    local used, held, wait
    if ARGV[a + 1] == '1' then
      local l = level(KEYS[i], most)
      used, held = math.ceil(l / 60000000), 0
      wait = math.max(0, math.ceil((l + room * 60000000 - most * 60000000) / most))
      if wait > 0 then ok = 0 end
    else
      local found = redis.call('HMGET', KEYS[i], 'u', 'h')
      used, held, wait = tonumber(found[1] or 0), tonumber(found[2] or 0), 0
      if used + held + room > most then ok, wait = 0, -1 end
    end
    for _, number in ipairs({used, held, wait}) do states[#states + 1] = string.format('%.0f', number) end
  end
  return ok, states
end
"""
)

#: KEYS: what this server holds, the mark of a request that has ended, the mark of a seeded Redis, who is alive, all servers, and the counters.
#: ARGV: the request, this server, its lifetime in ms, whether the counters must be seeded, what is held (JSON), and those of the counters.
#: Returns 1 (held), 0 (no room), -1 (not seeded) or -2 (given up), and the counters.
TAKE = (
    _LOOK
    + """
if redis.call('EXISTS', KEYS[2]) == 1 then return {-2} end
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then return {-1} end
local again = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
local ok, states = look(6, 5)
if again then return {1, unpack(states)} end
if ok == 0 then return {0, unpack(states)} end
for i = 6, #KEYS do
  local a = 5 + (i - 6) * 5
  local most, need = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  if ARGV[a + 1] == '1' then
    fill(KEYS[i], most, level(KEYS[i], most) + need * 60000000)
  else
    redis.call('HINCRBY', KEYS[i], 'h', ARGV[a + 3])
    keep(KEYS[i], ARGV[a + 5])
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[5])
redis.call('SET', KEYS[4], '1', 'PX', ARGV[3])
redis.call('SADD', KEYS[5], ARGV[2])
ok, states = look(6, 5)
return {1, unpack(states)}
"""
)

#: KEYS, ARGV: the counters. Returns them.
LOOK = (
    _LOOK
    + """
local ok, states = look(1, 0)
return states
"""
)

#: KEYS: what this server holds, the mark of a request that has ended, and the counters. ARGV: the request, and those of the counters.
#: Settle a request: what is held is given back and counted in one step, and so once, however often that is asked for. What is not held any more
#: was counted, or went with what its server held: nothing is counted, and 0 is returned. The mark keeps what was sent before from holding
#: it again.
SETTLE = (
    _CLOCK
    + """
redis.call('SET', KEYS[2], '1', 'PX', 60000)
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
for i = 3, #KEYS do
  local a = 1 + (i - 3) * 5
  local most, need, used = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  if ARGV[a + 1] == '1' then
    -- the claim may be one of an older limit
    if used ~= need then fill(KEYS[i], most, level(KEYS[i], most) + (used - need) * 60000000) end
  else
    if need > 0 then redis.call('HINCRBY', KEYS[i], 'h', '-' .. ARGV[a + 3]) end
    if used > 0 then redis.call('HINCRBY', KEYS[i], 'u', ARGV[a + 4]) end
    keep(KEYS[i], ARGV[a + 5])
  end
end
return 1
"""
)

_FREE = """
local function free(key)
  local rows = redis.call('HGETALL', key)
  for i = 2, #rows, 2 do
    for name, units in pairs(cjson.decode(rows[i])) do
      if redis.call('EXISTS', name) == 1 then redis.call('HINCRBY', name, 'h', '-' .. units) end
    end
  end
  redis.call('DEL', key)
  return #rows / 2
end
"""

#: KEYS: what a server holds, whether it is alive, and all servers. ARGV: the server. Of one that is not, all that it holds is free again.
LAPSE = (
    _FREE
    + """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('SREM', KEYS[3], ARGV[1])
return free(KEYS[1])
"""
)

#: KEYS: the mark of a seeded Redis, and all servers. ARGV: what the names of what a server holds begin with.
#: A Redis server that was started again: its counters may be an old copy. They are to be seeded, and nothing is held.
BEGIN = (
    _FREE
    + """
redis.call('DEL', KEYS[1])
for _, server in ipairs(redis.call('SMEMBERS', KEYS[2])) do free(ARGV[1] .. server) end
"""
)

#: KEYS: counters. ARGV: of each counter what was used at least, and when it ends (Unix ms).
SEED = (
    _CLOCK
    + """
for i = 1, #KEYS do
  local a = (i - 1) * 2
  if tonumber(redis.call('HGET', KEYS[i], 'u') or 0) < tonumber(ARGV[a + 1]) then redis.call('HSET', KEYS[i], 'u', ARGV[a + 1]) end
  keep(KEYS[i], ARGV[a + 2])
end
return 1
"""
)
