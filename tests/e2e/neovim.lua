-- Asks a ktuned daemon from Neovim: requests over an RPC channel, events over a pipe with Neovim's own MessagePack.
-- Neovim dispatches notifications to API functions alone, so that whoever wants events reads them from a pipe.
local path, out = os.getenv("KTUNED_SOCKET"), {}
local channel = vim.fn.sockconnect("pipe", path, { rpc = true })
local function ask(method, ...)
  return vim.rpcrequest(channel, method, ...)
end

out.hello = ask("hello").protocol
out.status = ask("lookup", { kernel = "it", problem = { n = 64 }, tune = false }).status
out.refused = pcall(ask, "lookup", { kernel = "it", problem = { m = 1 } })

local events, rest, subscribed = {}, "", false
local unpack = vim.mpack.Unpacker()
local pipe = vim.loop.new_pipe(false)
pipe:connect(path, function(failed)
  assert(not failed, failed)
  pipe:read_start(function(_, data)
    rest = rest .. (data or "")
    local place = 1
    while place <= #rest do
      local message, after = unpack(rest, place)
      place = after
      if message and message[1] == 1 then
        subscribed = message[3] == vim.NIL
      elseif message and message[1] == 2 and message[2] == "event" then
        table.insert(events, message[3][1].type)
      end
    end
    rest = ""
  end)
  pipe:write(vim.mpack.encode({ 0, 1, "subscribe", { { types = { "job_queued", "job_done" } } } }))
end)
vim.wait(60000, function() return subscribed end)
ask("tune", { kernel = "it" })
vim.wait(60000, function() return vim.tbl_contains(events, "job_done") end)
out.events = events
out.tuned = ask("lookup", { kernel = "it", problem = { n = 64 } }).status
local answers = ask("lookup_many", { lookups = { { kernel = "it", problem = { n = 64 } }, { kernel = "no" , problem = vim.empty_dict() } } })
out.many = vim.tbl_map(function(answer) return answer.status end, answers.answers)
pipe:close()
vim.fn.chanclose(channel)
vim.fn.writefile({ vim.fn.json_encode(out) }, os.getenv("ANSWER"))
