"""How good are the images? Features of the Inception network, and the metrics computed from them."""
