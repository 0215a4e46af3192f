"""What goes in and comes out, as the OpenAPI description has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

FINDING: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "description": "a state"},
        {"type": "number", "description": "the index of a state; its label where labels are whole numbers"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "number", "minimum": 0}, "description": "a likelihood for each state"},
        {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}, "description": "a likelihood by state, 0 for others"},
    ]
}


class Null:
    """JSON's null among findings, where it is a mistake: the library's sentences call it by its name."""

    def __repr__(self) -> str:
        return "null"


NULL = Null()


def named(value: Any) -> Any:
    return NULL if value is None else value


def _name_nulls(findings: dict[str, Any]) -> dict[str, Any]:
    """Those in likelihoods too."""

    def finding(value: Any) -> Any:
        if isinstance(value, dict):
            return {state: named(v) for state, v in value.items()}
        return [named(v) for v in value] if isinstance(value, list) else named(value)

    return {name: finding(value) for name, value in findings.items()}


# the library checks findings itself, with better sentences
Unchecked = Annotated[dict[str, Any], AfterValidator(_name_nulls)]
Findings = Annotated[
    Unchecked,
    Field(
        description="What is known: from variable to state, index of a state, or likelihood.",
        json_schema_extra={"additionalProperties": FINDING},
        examples=[{"fever": "high", "cough": "productive"}],
    ),
]
Targets = Annotated[list[str] | None, Field(description="The variables to report; all if not given.")]
Limited = ConfigDict(extra="forbid", strict=True)


class CaseBody(BaseModel):
    model_config = Limited
    evidence: Findings = Field(default_factory=dict)
    targets: Targets = None


class QueryBody(CaseBody):
    method: Annotated[
        Literal["um", "auto", "exact"] | None,
        Field(
            description="um: one pass of a trained network, at once: the default here if there is one, where the library and the command "
            "line have auto. auto: exact, else sampled with an error; the default without a trained network. exact: within 64 MiB, and "
            "no answer beyond."
        ),
    ] = None
    samples: Annotated[int | None, Field(ge=1, description="At most so many, of auto.")] = None
    seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="At most so long, of auto.")] = None
    target_error: Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False, description="Of auto: stop at this standard error.")] = (
        0.005
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 32, description="Of auto.")] = 0


class BatchBody(BaseModel):
    model_config = Limited
    evidence: Annotated[list[Unchecked], Field(description="As in a query, case by case; each gets its answer or its sentence.")]
    targets: Targets = None


class QuestionsBody(BaseModel):
    model_config = Limited
    evidence: Findings = Field(default_factory=dict)
    targets: Annotated[list[str], Field(min_length=1, description="What one wants to know.")]
    candidates: Annotated[
        list[str] | None,
        Field(description="What could be asked; if not given all other variables, of a trained model those that its training showed."),
    ] = None
    costs: Annotated[dict[str, float], Field(description="Of a question; 1 if not given.")] = Field(default_factory=dict)
    limit: Annotated[int, Field(ge=1, le=1000, description="So many questions, best first.")] = 10


class ExplainBody(BaseModel):
    model_config = Limited
    evidence: Findings = Field(default_factory=dict)
    target: str
    state: Annotated[str | None, Field(description="Of the target; unless given, the one that the findings raised most.")] = None


# --- answers


class Trouble(BaseModel):
    error: Annotated[str, Field(description="A sentence: what is wrong, and what is allowed.")]


class Answer(BaseModel):
    model: str
    method: str
    status: Literal["ok", "low_ess", "failed"]
    message: str
    marginals: dict[str, dict[str, float | None]]
    std_errors: Annotated[dict[str, dict[str, float | None]] | None, Field(description="None: no error of its own.")]
    samples: int
    ess: float | None
    k_hat: float | None
    log_evidence: float | None
    log_evidence_error: float | None
    seconds: float


class Marginals(BaseModel):
    message: Annotated[str, Field(description="How far to trust it.")]
    marginals: dict[str, dict[str, float]]


class BatchAnswer(BaseModel):
    model: str
    method: str
    answers: list[Marginals | Trouble]
    seconds: float


class QuestionRow(BaseModel):
    variable: str
    gain: Annotated[float, Field(description="Expected information about the targets, in nats.")]
    cost: float
    gain_per_cost: float
    gain_error: Annotated[float | None, Field(description="Standard error of the gain; null: not known.")]


class Ranking(BaseModel):
    entropy: Annotated[float, Field(description="What is unknown of the targets, in nats.")]
    method: Annotated[str, Field(description="um, exact, or the proposal whose samples were counted.")]
    questions: list[QuestionRow]
    seconds: float


class InfluenceRow(BaseModel):
    variable: str
    finding: str
    without: Annotated[float | None, Field(description="The probability without this finding.")]
    shift: float | None
    log_odds: Annotated[float | None, Field(description="None: infinite.")]


class ExplainAnswer(BaseModel):
    target: str
    state: str
    probability: float
    prior: float
    method: str
    std_error: Annotated[float | None, Field(description="The largest of the probabilities; null: not known.")]
    findings: list[InfluenceRow]
    seconds: float


class VariableFacts(BaseModel):
    name: str
    group: str
    states: list[str]
    parents: list[str]
    prior: dict[str, float | None]
    observable: Annotated[bool, Field(description="False where a model's training never showed a finding.")]


class NetworkFacts(BaseModel):
    model: str
    network: str
    trained: bool
    methods: list[str]
    limits: dict[str, float]
    groups: list[str]
    variables: list[VariableFacts]


class ModelFacts(BaseModel):
    name: str
    network: str
    variables: int
    trained: bool


class Health(BaseModel):
    status: Literal["ok", "warming up"]
    version: str
    models: list[ModelFacts]
