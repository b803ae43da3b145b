"""A tool parser as users wrote them for vLLM 0.6: old import paths, a constructor that takes the tokenizer alone."""

import json
import re

from vllm.entrypoints.openai.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.entrypoints.openai.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager
from vllm.transformers_utils.tokenizer import AnyTokenizer

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@ToolParserManager.register_module(["example"])
class ExampleToolParser(ToolParser):  # type: ignore[misc]
    def __init__(self, tokenizer: AnyTokenizer) -> None:  # type: ignore[no-any-unimported]
        super().__init__(tokenizer)
        self.sent = False

    def adjust_request(self, request):  # type: ignore[no-untyped-def]
        if request.tools:
            request.skip_special_tokens = False
        return request

    def extract_tool_calls_streaming(  # type: ignore[no-untyped-def]
        self,
        previous_text,
        current_text,
        delta_text,
        previous_token_ids,
        current_token_ids,
        delta_token_ids,
        request,
    ):
        if "<tool_call>" not in current_text:
            return DeltaMessage(content=delta_text)
        found = CALL.search(current_text)
        if found is None or self.sent:
            return None
        self.sent = True
        call = json.loads(found[1])
        function = DeltaFunctionCall(name=call["name"], arguments=json.dumps(call["arguments"]))
        self.prev_tool_call_arr = [call]
        self.streamed_args_for_tool = [function.arguments]
        return DeltaMessage(
            tool_calls=[DeltaToolCall(index=0, id="call_of_example", type="function", function=function)]
        )

    def extract_tool_calls(self, model_output, request):  # type: ignore[no-untyped-def]
        calls = [json.loads(text) for text in CALL.findall(model_output)]
        made = [
            ToolCall(function=FunctionCall(name=call["name"], arguments=json.dumps(call["arguments"])))
            for call in calls
        ]
        return ExtractedToolCallInformation(
            tools_called=bool(made), tool_calls=made, content=None if made else model_output
        )
