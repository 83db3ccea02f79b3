"""`polyarr serve`: a model that answers over HTTP, in the shapes of the OpenAI API."""
