"""What `loraplex` on a command line does, over REST or, for what has no service, by itself."""
