"""Block hashes that the engine's own functions gave (vLLM 0.32), and the prompt they are of."""

from __future__ import annotations

from typing import Final

HASH_BLOCK = 8
TOKEN_IDS: Final = (
    *(0, 23, 24, 255, 256, 65535, 65536, 127999, 7, 8, 9, 10, 11, 12, 13, 2**31 - 1),
    *range(100, 116),
)
"""Every length of an integer that serialisation knows; four blocks of `HASH_BLOCK`."""

SALT: Final = "tenant-\u00e4"

ROOTS: Final = {
    "sha256": "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
    "sha256_cbor": "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
}

CHAINS: Final = {
    ("sha256", ""): (
        "7bc709586136777d3f4c715897cc4e03d818b6271d461ce02a470598e800c653",
        "727d866adcccdc4d90a83cef848fef2212aeccf542ee8e14887044d23583605a",
        "6c9e31edb5001545070f3873f1c89d758090ee23f38ef047abee79d30228c7bd",
        "8ff299a817dc37f1c55fd1666b964d333e66747b6685196278495de8c1440761",
    ),
    ("sha256", SALT): (
        "321839817c904b290dfe63434e7e54cb29c6d92e928c454f72bd9c5300e476b7",
        "57b7c8833a50c77b79e4c707e723f9b63b628cd2fa193854c56bb9613f3a726f",
        "d9077c78c5288f7e7f186787e6ec47f9195a82d2701cacff139e87a51ab4f3a3",
        "902dab685c4e87070da38a18b7818c8932b45294ae6d18e70baca462403bddd4",
    ),
    ("sha256_cbor", ""): (
        "7d0c0fb99d71b21b21c90240ff7bc03d1cad8ba7034d70d8e78012da9880d786",
        "09b75980ae5760753dc391d0cbdf964b3c73f342138c0c1e2cc658cd39b3af8e",
        "7262167e20b13d11638b7f672e52fdec745122aa964e1f3aa57041e284b956f5",
        "c3a19dd204be4de6588ca56f749a3b6140e340015cefdaedd86f2cb7783eee6d",
    ),
    ("sha256_cbor", SALT): (
        "64fb255d1413f0d7ac153eafa0e631ebc65a3288480881cb82022245cfb80774",
        "4c10574969ca86434fcebfe45851374c886a559c3cd0fdc55bb1dd97d4281a5d",
        "f728b40da4e646fc816c12e64c9f496d662aa0f015240161ec9e08058d467ae9",
        "b0b51e5e94c59a9de93b326313e6ed9abf4aedd57115e20991bc6c54ca6ce348",
    ),
}
"""By algorithm and cache salt, with the default seed."""
