"""The operator library: name -> operator."""
