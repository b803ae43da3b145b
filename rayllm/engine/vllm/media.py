"""Refuses media that a model's file does not allow, with messages for clients.

vLLM's messages address the server's operator, and for a local file, vLLM answers with status 500.
"""

from __future__ import annotations

from typing import Any

from rayllm.engine.arguments import NO_HOST

PARAMETER = "media"
"""Stands for the field with the prompt."""
_LOCAL_FILE = "This model takes no local files (`file://`). Send a data URL."
_OTHER_HOST = (
    "This model takes no media from other hosts. Send a data URL, or name the host in the model's "
    "`engine_kwargs.allowed_media_domains`."
)


def refuse_media() -> None:
    """Have vLLM's media connectors refuse what the model's file does not allow."""
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import MediaConnector

    load_file, check_host = MediaConnector._load_file_url, MediaConnector._assert_url_in_allowed_media_domains

    def load_allowed_file(self: Any, *args: Any) -> Any:
        if self.allowed_local_media_path is None:
            raise VLLMValidationError(_LOCAL_FILE, parameter=PARAMETER)
        return load_file(self, *args)

    def check_allowed_host(self: Any, *args: Any) -> None:
        if list(self.allowed_media_domains) == [NO_HOST]:
            raise VLLMValidationError(_OTHER_HOST, parameter=PARAMETER)
        check_host(self, *args)

    MediaConnector._load_file_url = load_allowed_file
    MediaConnector._assert_url_in_allowed_media_domains = check_allowed_host
