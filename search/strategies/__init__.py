"""The strategies there are: name -> strategy."""
