"""In the agent: policy packages and the live monitor.

>>> import stopwise.runtime
>>> policy = stopwise.runtime.load("policy/")                                   # doctest: +SKIP
>>> monitor = policy.monitor("Who ...?")                                        # doctest: +SKIP
>>> advice = monitor.observe(queries=["..."], documents=[{"title": "..."}])     # doctest: +SKIP
>>> advice.action, advice.message, advice.probabilities, advice.signals         # doctest: +SKIP
"""

from stopwise.data.records import Action
from stopwise.runtime.monitor import Advice, Monitor
from stopwise.runtime.policy import Policy, load

__all__ = ["Action", "Advice", "Monitor", "Policy", "load"]
