"""`baregrad bench --suite llm`: a language model beside llama.cpp, on one file and as many threads.

In comes a GGUF file, out go tokens a second of both sides and where their greedy texts part.
"""
