-- Put a web server of these examples under load with wrk (on Debian: apt install wrk):
--
--     wrk -t 2 -c 128 -d 10s --timeout 20s --latency -s examples/infill.lua http://127.0.0.1:5005/stream
--
-- Each request is one sentence in the form field `s`.  -c is how many ask at the same
-- time: with fewer than a batch has room for, batches cannot be full.

local sentences = {
  "twinkle twinkle [MASK] star.",
  "Happy birthday to [MASK].",
  "the answer to life, the [MASK], and everything.",
}

local function encoded(text)
  return (text:gsub("[^%w]", function(letter) return ("%%%02X"):format(letter:byte()) end))
end

local requests, turn = {}, 0

function init()
  local headers = { ["Content-Type"] = "application/x-www-form-urlencoded" }
  for number, sentence in ipairs(sentences) do
    requests[number] = wrk.format("POST", nil, headers, "s=" .. encoded(sentence))
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end
