-- The number 3, as LitServe and mosec are asked.
wrk.method = "POST"
wrk.body = '{"x": 3}'
wrk.headers["Content-Type"] = "application/json"
