"""What a filter is trained for: `AgainstTruth`, `Imitation`, `OnScenarios`; a new objective is one more file."""

from bieqno.assimilation.objectives.against_truth import AgainstTruth
from bieqno.assimilation.objectives.imitation import Imitation
from bieqno.assimilation.objectives.objective import Objective, Task
from bieqno.assimilation.objectives.on_scenarios import OnScenarios, Scenarios

__all__ = ["AgainstTruth", "Imitation", "Objective", "OnScenarios", "Scenarios", "Task"]
