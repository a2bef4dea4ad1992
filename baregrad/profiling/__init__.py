"""Profiles: what every device and thread did when, for whom, and how near to the machine's limits.

In come devices, whose calls are watched, and spans. Out come files for trace viewers, and tables.
Imports `engine` and below.
"""

from baregrad.profiling.profile import Profile as Profile
from baregrad.profiling.profile import begin_for_process as begin_for_process
