"""The FastAPI app: ``uvicorn webapp.fastapi_app:app``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

from celery.exceptions import TimeoutError as CeleryTimeoutError
from fastapi import Depends, FastAPI, File, Form, HTTPException, Request, Response, UploadFile
from fastapi.responses import FileResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from celery_batch.web.fastapi import (
    ERROR_RESPONSES,
    Predictor,
    add_exception_handlers,
    predictor,
    readiness_router,
)
from webapp import tasks
from webapp.metrics import MetricsMiddleware, exposition
from webapp.stats import Stats, stats
from webapp.task_status import TaskStatus, task_status

app = FastAPI(
    title="celery_batch",
    description="Calls batch tasks, one for each input.",
    max_body_size=tasks.MAX_BODY,
)
app.add_middleware(MetricsMiddleware)
add_exception_handlers(app)

Predict = Annotated[Predictor, Depends(predictor(tasks.TASK, timeout=tasks.TIMEOUT))]

Sentences = Annotated[list[str], Form(min_length=1, max_length=tasks.MAX_INPUTS)]
Images = Annotated[list[UploadFile], File(min_length=1, max_length=tasks.MAX_INPUTS)]


class Inputs(BaseModel):
    """One call of the task for each input."""

    inputs: Annotated[list[Any], Field(min_length=1, max_length=tasks.MAX_INPUTS)]


class Outputs(BaseModel):
    """The outputs, in the inputs' order."""

    outputs: list[Any]


class NewTask(BaseModel):
    """A call without a waiting caller."""

    input: Any


class SentTask(BaseModel):
    """Where to ask for a call's state."""

    id: UUID
    url: str


@app.post("/predict", responses=ERROR_RESPONSES)
async def predict(body: Inputs, predict: Predict) -> Outputs:
    """Return an output for each input."""
    return Outputs(outputs=await predict(body.inputs))


@app.post("/stream", responses=ERROR_RESPONSES)
async def stream(s: Sentences, predict: Predict) -> list[Any]:
    """Return an output for each field ``s`` of a form."""
    return await predict(s)


if tasks.NAIVE_TASK:
    PredictNaive = Annotated[Predictor, Depends(predictor(tasks.NAIVE_TASK, timeout=tasks.TIMEOUT))]

    @app.post("/naive", responses=ERROR_RESPONSES)
    async def naive(s: Sentences, predict: PredictNaive) -> list[Any]:
        """Do the same without batches, to compare."""
        return await predict(s)


if tasks.IMAGE_TASK:
    PredictImage = Annotated[Predictor, Depends(predictor(tasks.IMAGE_TASK, timeout=tasks.TIMEOUT))]

    @app.post("/images", responses=ERROR_RESPONSES)
    async def images(image: Images, predict: PredictImage) -> Outputs:
        """Return an output for each uploaded file."""
        if any((each.size or 0) > tasks.MAX_IMAGE for each in image):
            raise HTTPException(413, f"An image may have {tasks.MAX_IMAGE} bytes.")
        return Outputs(outputs=await predict([await each.read() for each in image]))


@app.post("/tasks", status_code=202, responses=ERROR_RESPONSES)
async def send(body: NewTask, request: Request, response: Response) -> SentTask:
    """Send a call, and return its id at once."""
    result = await tasks.TASK.adelay(body.input)
    url = request.url_for("state", task_id=result.id).path
    response.headers["Location"] = url
    return SentTask(id=result.id, url=url)


@app.get("/tasks/{task_id}", responses=ERROR_RESPONSES)
def state(task_id: UUID) -> TaskStatus:
    """Return a call's state, and its output once it has one."""
    return task_status(task_id)


@app.delete("/tasks/{task_id}", responses=ERROR_RESPONSES)
def revoke(task_id: UUID) -> TaskStatus:
    """Revoke a call that has not begun."""
    tasks.TASK.AsyncResult(str(task_id)).revoke()
    return task_status(task_id)


@app.get("/events/{task_id}", response_class=EventSourceResponse)
async def events(task_id: UUID) -> AsyncIterator[ServerSentEvent]:
    """Send each state of a call until it has ended, or nothing new comes for a while."""
    yield ServerSentEvent(comment="the states follow")  # the headers wait for a first event
    with suppress(CeleryTimeoutError):  # the client may connect again
        async for name in tasks.TASK.AsyncResult(str(task_id)).iter_states(tasks.TIMEOUT):
            yield ServerSentEvent(event=name, data={"id": str(task_id), "state": name})


@app.get("/stats")
def get_stats() -> Stats:
    """Return what the workers do at this moment."""
    return stats()


@app.get("/healthz")
async def healthz() -> dict[str, bool]:
    """Answer while the process lives."""
    return {"ok": True}


@app.get("/metrics", include_in_schema=False)
def metrics() -> Response:
    """Return the metrics of the app's requests, for Prometheus."""
    return Response(exposition(), media_type=CONTENT_TYPE_LATEST)


@app.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    headers = {"Content-Security-Policy": tasks.CSP}
    return FileResponse(tasks.PAGE / "index.html", headers=headers)


# Last, since routes are tried in order, and these take longer to try than a path.
app.include_router(readiness_router(tasks.app, [tasks.TASK]))
app.mount("/static", StaticFiles(directory=tasks.PAGE))
