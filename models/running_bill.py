"""The bill of a client over all calls of a command that is interrupted and called again."""

from pathlib import Path
from typing import Any

from stopwise.data.files import write_json
from stopwise.models.chat_client import ChatClient
from stopwise.models.ledger import add_reports, read_bill


class RunningBill:
    """Adds what a client spends to what earlier calls have left in a file."""

    def __init__(self, path: Path, client: ChatClient) -> None:
        """Take up the bill.

        Args:
            path: of the bill; made by `write`.
            client: has spent nothing that stands there.

        Raises:
            DataError: what stands there is no bill.
        """
        self._path = path
        self._client = client
        self._earlier = read_bill(path) if path.exists() else None

    def report(self) -> dict[str, Any]:
        """JSON-able: the model, the name under which it answers, and the bill up to now."""
        client = self._client
        now = {"model": client.id, "served_model": client.served_model, **client.ledger.report()}
        return now if self._earlier is None else add_reports(self._earlier, now)

    def write(self) -> None:
        """Write it down: what was spent is spent, whatever happens next."""
        write_json(self._path, self.report())
