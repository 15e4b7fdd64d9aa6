"""ReCAP Studio: plain decoding and reuse side by side in a browser, sub-step by sub-step."""
