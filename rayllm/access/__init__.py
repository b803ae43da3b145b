"""API keys: who may call the service, and what a key may use."""

from rayllm.access.caller import ANYONE, Caller, caller_of
from rayllm.access.key import Key, new_key
from rayllm.access.key_file import KeyFile, check_key_file
from rayllm.access.keyring import NO_KEYS, Keyring

__all__ = ["ANYONE", "NO_KEYS", "Caller", "Key", "KeyFile", "Keyring", "caller_of", "check_key_file", "new_key"]
