"""Networks of world models: recurrent latent dynamics, and encoders and decoders of observations."""
