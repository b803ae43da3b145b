"""Messages to text: `prompt_format`, compiled to a Jinja chat template and rendered as vLLM renders it.

A `PromptFormat` is validated at load time, `compile_template` turns it into the chat template for vLLM, and `render`
produces the same prompt without an engine, for batch and the command line. Nothing here does any I/O.

Process: any.
"""

from rayllm.prompt.format import PromptFormat
from rayllm.prompt.render import PromptError, render
from rayllm.prompt.template import compile_template

__all__ = ["PromptError", "PromptFormat", "compile_template", "render"]
