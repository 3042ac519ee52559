"""The problem document (RFC 9457) is the body of every answer that is not a success."""

from pydantic import BaseModel, ConfigDict, Field


class FieldProblem(BaseModel):
    """Names one thing that is wrong with the input."""

    field: str
    detail: str


class ProblemDetails(BaseModel):
    """``code`` is stable and machine-readable. ``field`` is a JSON pointer into the body, or the name of a query, path
    or header parameter. It is empty when no single part of the request is at fault."""

    model_config = ConfigDict(extra="ignore")

    type: str = Field(default="about:blank", description="URN of the kind of problem.")
    title: str
    status: int = Field(ge=100, le=599)
    detail: str
    code: str
    field: str = ""
    request_id: str = ""
    errors: list[FieldProblem] = Field(default_factory=list)
