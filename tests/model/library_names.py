"""Names of other libraries that the package uses although their documentation does not promise them.

Each has the reason why it is used and, for a function, the parameters that the package relies on. A name is written as
`module:attribute`. A name after `module#` is only assigned or read inside that module, so its source must contain it.
`test_library_names.py` reports which of them an installed release has changed, and fails if the package uses another.
"""

GENERATION, MODEL = "transformers.generation.utils:GenerationMixin", "transformers.modeling_utils:PreTrainedModel"
TOKENIZER = "transformers.tokenization_utils_tokenizers:TokenizersBackend"
PIPELINE = "transformers.pipelines.base:Pipeline"
# Flags by which a class states what it supports or needs.
MODEL_FLAGS = (
    *("_can_compile_fullgraph", "_supports_attention_backend", "_supports_flash_attn"),
    *("_supports_flex_attn", "_supports_sdpa"),
)
PIPELINE_FLAGS = (
    *("_load_feature_extractor", "_load_image_processor", "_load_processor", "_load_tokenizer"),
    *("_load_video_processor", "_pipeline_calls_generate"),
)
HOOKS = (":_global_forward_hooks", ":_global_forward_pre_hooks", "#_forward_hooks", "#_forward_pre_hooks")

NAMES: dict[str, tuple[str, str]] = {
    # Decoding.
    f"{GENERATION}._expand_inputs_for_generation": (
        "expand_size is_encoder_decoder input_ids",
        "The source is not copied for each hypothesis.",
    ),
    f"{GENERATION}._get_logits_processor": (
        "encoder_input_ids",
        "Penalties that read the source ignore its padding.",
    ),
    "transformers.generation.utils#_reorder_cache": ("", "The keys of the source are not reordered."),
    f"{GENERATION}._prepare_cache_for_generation": (
        "generation_config model_kwargs",
        "Each member of an ensemble prepares its own cache.",
    ),
    f"{GENERATION}._supports_default_dynamic_cache": ("", "The state of a recurrent model is no list of positions."),
    f"{GENERATION}.adjust_generation_fn": (
        "generation_config",
        "A model that was saved without decoding settings gets the paper's.",
    ),
    f"{GENERATION}.prepare_inputs_for_generation": (
        "input_ids next_sequence_length is_first_iteration",
        "The mask of a target's prompt stays as given.",
    ),
    "transformers.generation.configuration_utils#_from_model_config": (
        "",
        "It marks decoding settings that nobody chose, which the paper's replace.",
    ),
    # Layers and masks.
    "transformers.generation.continuous_batching:PagedAttentionCache": (
        "",
        "It has no length, so a decoder treats it differently.",
    ),
    "transformers.masking_utils:create_causal_mask": (
        "config inputs_embeds attention_mask position_ids allow_is_causal_skip",
        "The fourth parameter is passed by position, because 5.24 renamed it.",
    ),
    "transformers.masking_utils:create_bidirectional_mask": (
        "config inputs_embeds attention_mask encoder_hidden_states allow_is_bidirectional_skip",
        "It builds the masks of the encoder and of cross-attention.",
    ),
    "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS": ("", "Attention implementations are looked up there."),
    "transformers.configuration_utils#_attn_implementation": ("", "The name of the chosen attention implementation."),
    "transformers.modeling_layers:GradientCheckpointingLayer": ("", "The base class of a layer."),
    "transformers.activations:ACT2FN": ("", "Activations by their names in a configuration."),
    "transformers.utils.generic:merge_with_config_defaults": ("func", "`use_cache` comes from the configuration."),
    "transformers.utils.output_capturing:capture_outputs": ("func", "Hidden states and attention weights."),
    "transformers.utils.output_capturing:OutputRecorder": ("target_class index layer_name", "Which of them."),
    # Models.
    f"{MODEL}._init_weights": ("module", "Initial weights."),
    f"{MODEL}._resize_token_embeddings": ("", "A separate target embedding is resized too."),
    f"{MODEL}._get_resized_embeddings": ("", "A separate target embedding is resized too."),
    f"{MODEL}._auto_class": ("", "The class under which a model's code is saved."),
    f"{MODEL}._can_record_outputs": ("", "Where hidden states and attention weights are found."),
    f"{MODEL}._input_embed_layer": ("", "The name of the embedding."),
    f"{MODEL}._is_stateful": ("", "A recurrent state cannot be shortened."),
    f"{MODEL}._no_split_modules": ("", "Layers that stay on one device; `--compile` compiles them one by one."),
    f"{MODEL}._skip_keys_device_placement": ("", "The cache is not moved between devices."),
    **{
        f"{MODEL}.{flag}": ("", "transformers rejects an attention implementation or compilation without it.")
        for flag in MODEL_FLAGS
    },
    f"{MODEL}._tied_weights_keys": ("", "Weights that share one matrix (section 3.4)."),
    "transformers.models.auto.auto_factory:_BaseAutoModelClass": ("", "The type of an Auto class."),
    "transformers.models.auto.auto_factory:_BaseAutoModelClass._model_mapping": ("", "The models of an Auto class."),
    "transformers.models.auto.modeling_auto:MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": (
        "",
        "`Trainer` shifts the labels of the models in this table when it smooths them.",
    ),
    "transformers.dynamic_module_utils:get_relative_import_files": ("module_file", "The files that a push uploads."),
    # Pipelines.
    "transformers.pipelines:PIPELINE_REGISTRY": ("", "`translation` and `token-classification` are registered there."),
    "transformers.pipelines:REMOVED_TASKS": ("", "transformers 5 rejects `translation` as long as it is listed."),
    f"{PIPELINE}._forward": ("input_tensors", "`translation` calls `generate`."),
    f"{PIPELINE}._sanitize_parameters": ("", "`translation` passes settings to `generate`."),
    **{f"{PIPELINE}.{flag}": ("", "`pipeline` loads and prepares parts by it.") for flag in PIPELINE_FLAGS},
    "transformers.pipelines.base#_prepare_generate_kwargs": ("", "The settings of a call."),
    # Tokenizers.
    f"{TOKENIZER}._add_tokens": ("", "Added tokens are decoded as text."),
    f"{TOKENIZER}._decode": ("token_ids skip_special_tokens clean_up_tokenization_spaces", "Plain text is kept."),
    f"{TOKENIZER}._encode_plus": ("text text_pair", "Words that are already split get their spaces."),
    f"{TOKENIZER}.update_post_processor": ("", "The tokens around a text stay as they were loaded."),
    "transformers.tokenization_utils_base#_switch_to_target_mode": ("", "Targets keep their case."),
    "transformers.tokenization_utils_tokenizers#_tokenizer": ("", "A reader of plain text has a separate backend."),
    "transformers.tokenization_utils_base#_extra_special_tokens": ("", "In plain text they are no special tokens."),
    # Other libraries.
    "accelerate.state#_reset_state": ("", "A run begins with its own settings of accelerate."),
    "accelerate.state#_shared_state": ("", "The settings that the program had return after a run."),
    "datasets.arrow_dataset#_fingerprint": ("", "It identifies the text that a run was started with."),
    "torch.nn.modules.module:Module._apply": ("fn recurse", "A shared embedding is moved with a stack."),
    "torch.nn.modules.module:Module._save_to_state_dict": ("destination prefix keep_vars", "A shared embedding."),
    **{f"torch.nn.modules.module{hook}": ("", "The exports run no hooks and reject them.") for hook in HOOKS},
    "torch.nn.modules.module#_modules": ("", "A shared embedding is registered once."),
    "torch.nn.modules.module#_is_replica": ("", "Replicas of `DataParallel` keep the original's stacks."),
    "torch.cpu:_is_avx512_bf16_supported": ("", "Whether a CPU computes in bfloat16."),
    "torch._inductor.utils#_is_mkldnn_bf16_supported": ("", "Whether a CPU computes in bfloat16."),
    "subprocess:_args_from_interpreter_flags": ("", "Workers run with this interpreter's flags."),
}
