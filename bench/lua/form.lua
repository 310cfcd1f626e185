-- The number 3 in a form, as service-streamer's example is asked.
wrk.method = "POST"
wrk.body = "s=3"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
