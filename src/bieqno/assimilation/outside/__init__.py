"""Models outside JAX whose members run one by one, on any executor, and the host loop that assimilates with them."""

from bieqno.assimilation.outside.loop import Progress as Progress
from bieqno.assimilation.outside.loop import TooFewMembersError as TooFewMembersError
from bieqno.assimilation.outside.loop import cycle_outside as cycle_outside
from bieqno.assimilation.outside.members import Members as Members
from bieqno.assimilation.outside.program import BMIModel as BMIModel
from bieqno.assimilation.outside.program import Program as Program
