"""Servers in Python that limit to 50 requests a second: servers.py NAME PORT"""

import sys

NAME, PORT = sys.argv[1], int(sys.argv[2])

if NAME == "flask-limiter":
    import flask
    import flask_limiter
    import flask_limiter.util
    import waitress

    app = flask.Flask("interop")
    flask_limiter.Limiter(
        flask_limiter.util.get_remote_address,
        app=app,
        default_limits=["50 per second"],
        headers_enabled=True,
        storage_uri="memory://",
    )

    @app.get("/")
    def hello():
        return "hello\n"

    waitress.serve(app, host="127.0.0.1", port=PORT, threads=8, _quiet=True)
elif NAME == "slowapi":
    import fastapi
    import slowapi
    import slowapi.errors
    import slowapi.util
    import uvicorn

    limiter = slowapi.Limiter(key_func=slowapi.util.get_remote_address, headers_enabled=True)
    app = fastapi.FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("50/second")
    async def hello(request: fastapi.Request, response: fastapi.Response):
        return {"hello": "world"}

    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="error")
else:
    sys.exit(f"unknown server: {NAME}")
