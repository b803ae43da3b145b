"""API keys: who may call the service, what a key may use, and what it has used. Process: any."""

from rayllm.access.caller import ANYONE, Caller, caller_of
from rayllm.access.key import NO_KEYS, Key, Keyring, new_key
from rayllm.access.key_file import KeyFile, check_key_file

__all__ = ["ANYONE", "NO_KEYS", "Caller", "Key", "KeyFile", "Keyring", "caller_of", "check_key_file", "new_key"]
