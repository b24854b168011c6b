"""One module per vendor. Only these import a vendor's library, and only inside a DeviceProbe child."""
