"""``evenload.futures.Executor``: jobs of ``concurrent.futures``, dealt over every device."""

from evenload.integrations.concurrent_futures import Executor
from evenload.integrations.job_future import JobLost, JobNotSendable, NoWorker

__all__ = ["Executor", "JobLost", "JobNotSendable", "NoWorker"]
