"""A step's forward and backward, which a run waits for: made alone or with others' (stack.py).

Shapes: B batch, T time.
"""

from dataclasses import dataclass, field

from torch import Tensor

from .state import Forward, State


@dataclass
class Pass:
    state: State
    forward: Forward
    x_BT: Tensor
    y_BT: Tensor
    heard: bool  # hooks listen to this run's own modules
    loss: Tensor = field(init=False)

    def objective(self, forward: Forward) -> Tensor:
        """What backward starts from, by a forward that gives this run's logits."""
        self.loss, objective = self.state.losses(forward, self.x_BT, self.y_BT)
        return self.state.scale.scale(objective)

    def alone(self) -> None:
        self.objective(self.forward).backward()
