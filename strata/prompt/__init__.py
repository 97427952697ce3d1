"""A prompt at the speed of kernels: its plan, the room it borrows, and its run.

`plan` says which tensors a prompt needs and where they lie, `lanes` copy beside the compute,
`runner` orders the kernels of a chunk. Where kernels do not serve a model, `Engine` runs prompts
in plain torch.
"""

from strata.prompt.plan import FREE_ROOM_BYTES, PromptPlan, PromptShape, serves_prompts
from strata.prompt.runner import PromptRunner

__all__ = ["FREE_ROOM_BYTES", "PromptPlan", "PromptRunner", "PromptShape", "serves_prompts"]
