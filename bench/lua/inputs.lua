-- The number 3 in a list of one input, as ours are asked.
wrk.method = "POST"
wrk.body = '{"inputs": ["3"]}'
wrk.headers["Content-Type"] = "application/json"
