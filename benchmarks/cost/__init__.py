"""What a step costs beside SGLang's own classes."""
