"""The sketches there are: name -> sketch."""
