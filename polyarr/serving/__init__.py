"""HTTP server for a language model, with the completions and chat completions of the OpenAI API (`polyarr serve`)."""
