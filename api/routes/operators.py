"""Shows the operator library: names, parameters and the workloads that they stand for."""

from fastapi import APIRouter

from ...core.errors import NotFound
from ...te.cost import flops, minimum_bytes
from ...te.json import workload_to_json
from ...te.key import workload_key
from ...te.text import workload_text
from ..dependencies import OperatorName, ServiceDependency
from ..expressions import task_of
from ..problem_responses import COMPUTES, FINDS, READS
from ..requests import ExpressionIn, ParametersIn
from ..responses import OperatorList, OperatorOut, WorkloadOut
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/operators", tags=["operators"], route_class=StrictRoute)


@router.get("", operation_id="listOperators", responses=READS)
def list_operators(service: ServiceDependency) -> OperatorList:
    """List all operators with the JSON schemas of their parameters."""
    return OperatorList(operators=tuple(OperatorOut.model_validate(o) for o in service.operators()))


@router.get("/{name}", operation_id="getOperator", responses=FINDS)
def get_operator(name: OperatorName, service: ServiceDependency) -> OperatorOut:
    """Show one operator with the JSON schema of its parameters."""
    return OperatorOut.model_validate(_operator(service, name))


@router.post("/{name}/workload", operation_id="makeWorkload", responses=COMPUTES)
def workload(name: OperatorName, body: ParametersIn, service: ServiceDependency) -> WorkloadOut:
    """Make the workload that an operator stands for with the given parameters: JSON, key, text and cost."""
    _operator(service, name)
    task = task_of(service, ExpressionIn(operator=name, parameters=body.parameters))
    return WorkloadOut(
        workload_key=workload_key(task.workload),
        workload=workload_to_json(task.workload),
        expression=workload_text(task.workload),
        flops=flops(task.workload),
        minimum_bytes=minimum_bytes(task.workload),
    )


def _operator(service: ServiceDependency, name: str) -> object:
    for operator in service.operators():
        if operator.name == name:
            return operator
    known = ", ".join(operator.name for operator in service.operators())
    raise NotFound(f"there is no operator {name!r}; known: {known}", field="name")
