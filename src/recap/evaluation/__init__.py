"""How good are images and texts? Features of the Inception network, metrics made of them, and judges of text."""
