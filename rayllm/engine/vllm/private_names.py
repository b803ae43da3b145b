"""Every private name of vLLM that RayLLM uses, for vLLM 0.29.

`tests/vllm/test_engine_names.py` checks them against the installed vLLM, so an upgrade names what it broke.
"""

from __future__ import annotations

PRIVATE_NAMES = {
    "vllm.config": (
        "StructuredOutputsConfig.disable_additional_properties",
        "StructuredOutputsConfig.disable_any_whitespace",
    ),
    "vllm.engine.arg_utils": ("AsyncEngineArgs.create_engine_config",),
    "vllm.entrypoints.launchers.app": ("build_app",),
    "vllm.entrypoints.launchers.api_server.app_state": ("init_app_state",),
    "vllm.entrypoints.launchers.cli_args": ("FrontendArgs",),
    "vllm.entrypoints.openai.models.serving": ("OpenAIServingModels.model_name",),
    "vllm.entrypoints.anthropic.protocol": ("AnthropicMessagesRequest.model_fields",),
    "vllm.entrypoints.anthropic.serving": ("AnthropicServingMessages.message_stream_converter",),
    "vllm.entrypoints.openai.chat_completion.protocol": (
        "BatchChatCompletionRequest.model_fields",
        "ChatCompletionRequest.model_fields",
    ),
    "vllm.entrypoints.openai.completion.protocol": (
        "CompletionRequest.model_fields",
        "CompletionRequest.to_sampling_params",
    ),
    "vllm.entrypoints.openai.responses.protocol": ("ResponsesRequest.model_fields",),
    "vllm.entrypoints.serve.exception_handling.error_response": ("create_error_response",),
    "vllm.exceptions": ("GenerationError", "GracefulHTTPError", "VLLMClientError", "VLLMValidationError"),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.platforms": ("current_platform",),
    "vllm.reasoning": ("ReasoningParserManager.list_registered", "ReasoningParserManager.import_reasoning_parser"),
    "vllm.sampling_params": ("SamplingParams",),
    "vllm.tool_parsers": ("ToolParserManager.list_registered", "ToolParserManager.lazy_parsers"),
    "vllm.renderers.hf": ("resolve_chat_template",),
    "vllm.usage.usage_lib": ("UsageContext.OPENAI_API_SERVER",),
    "vllm.v1.structured_output.backend_xgrammar": ("has_xgrammar_unsupported_json_features",),
    "vllm.lora.ops.torch_ops.lora_ops": ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"),
    "vllm.lora.punica_wrapper.punica_cpu": (
        "PunicaWrapperCPU.add_lora_logits",
        "PunicaWrapperCPU.token_lora_indices",
        "bgmv_shrink",
        "bgmv_expand",
        "bgmv_expand_slice",
    ),
    "vllm.v1.structured_output.request": ("get_structured_output_key",),
    "vllm.v1.structured_output.utils": ("convert_lark_to_ebnf", "grammar_is_likely_lark"),
    "vllm.pooling_params": ("PoolingParams.dimensions", "PoolingParams.use_activation"),
    "vllm.v1.engine.exceptions": ("EngineDeadError", "EngineGenerateError"),
    "vllm.v1.engine.core_client": ("BackgroundResources.engine_manager",),
    "vllm.v1.engine.utils": ("CoreEngineProcManager.shutdown", "get_mp_context"),
    "vllm.v1.executor.uniproc_executor": ("UniProcExecutor",),
    "vllm.v1.engine.input_processor": ("InputProcessor",),
    "vllm.v1.engine.output_processor": (
        "OutputProcessor.add_request",
        "OutputProcessor.request_states",
        "RequestState.max_tokens_param",
        "RequestState.num_cached_tokens",
        "RequestState.parent_req",
        "RequestState.prompt_len",
        "RequestState.stats",
    ),
    "vllm.v1.engine": ("EngineCoreEventType.PREEMPTED",),
    "vllm.v1.metrics.ray_wrappers": ("RayPrometheusStatLogger",),
    "vllm.v1.metrics.stats": (
        "IterationStats.update_from_events",
        "RequestStateStats.first_token_ts",
        "RequestStateStats.last_token_ts",
        "RequestStateStats.num_generation_tokens",
        "RequestStateStats.queued_ts",
        "RequestStateStats.scheduled_ts",
    ),
    "vllm.v1.engine.async_llm": (
        "AsyncLLM.from_vllm_config",
        "AsyncLLM.get_supported_tasks",
        "AsyncLLM.get_tokenizer",
        "AsyncLLM.is_sleeping",
        "AsyncLLM.check_health",
        "AsyncLLM.errored",
        "AsyncLLM.encode",
        "AsyncLLM.errored",
        "AsyncLLM.generate",
        "AsyncLLM.add_lora",
        "AsyncLLM.remove_lora",
        "AsyncLLM.shutdown",
    ),
}
"""Module → the names used from it, dotted for attributes."""
