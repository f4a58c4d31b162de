"""Sources of the public datasets: where to download them, and the SHA-256 of every file whose digest is known."""

from __future__ import annotations

SOURCES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/ (mirror of http://yann.lecun.com/exdb/mnist/)",
    "fashion-mnist": "https://github.com/zalandoresearch/fashion-mnist",
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "emnist47": "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    "imdb": "https://ai.stanford.edu/~amaas/data/sentiment/",
}

MNIST = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

FASHION_MNIST = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

EMNIST47_SUBSET = {
    "emnist47-balanced-subset-train-images-idx3-ubyte.gz": (
        "1558352096ef0e475f6d7672e6f35f9ac1423d3bfd6223c2c3caeb261a5d104a"
    ),
    "emnist47-balanced-subset-train-labels-idx1-ubyte.gz": (
        "911f6d6c64468f410fcd2bdef8a2d9e2a927a1fcf8e163db77bd368c8623f464"
    ),
    "emnist47-balanced-subset-test-images-idx3-ubyte.gz": (
        "a2bb71dcd79f0a98b1f71d27fcf3621cf044b681eb223b4886c2891ac31df94f"
    ),
    "emnist47-balanced-subset-test-labels-idx1-ubyte.gz": (
        "b16ffe8b5be760b7f2e4d0d01b7a720a513702799a9e80a94eaac677d4fe2739"
    ),
    "emnist47-balanced-subset-train-images-idx3-ubyte": (
        "eaac0eeaefa10f1d47c58f51ec4e3d7300df6d096327387d9a148159ca9f486e"
    ),
    "emnist47-balanced-subset-train-labels-idx1-ubyte": (
        "4e016e77134fcf302ebae445fdcc15b3875d7f1c8a54cf27cc9f1c525b19c010"
    ),
    "emnist47-balanced-subset-test-images-idx3-ubyte": (
        "ed3aa0164228593d9025019ab65459c69fc8c48dd872e015393a90e0344dadb3"
    ),
    "emnist47-balanced-subset-test-labels-idx1-ubyte": (
        "bca5bece51c67d5eaa74fb6bfb6b97fb65e3c0fd8a1a6467683ccf19cc58f49c"
    ),
}

CIFAR10_SHEETS = {
    "data_batch_1.webp": "862a5a757c0ed18e28a9b1f65328d680ec630f7b1d8c2ac2ce6d70e049b04152",
    "data_batch_2.webp": "d62450c6d4ccb4733be8b57ce69915d0b341641951cc52c6e6c2361e39e21f55",
    "data_batch_3.webp": "27503b707baa2e0edcfbd41a8d08b1b03271a91d92bafbb5dfda7600460ac429",
    "data_batch_4.webp": "66cbb67802489a290ae4045698b5b384782a35ba6c332d32d90242b9d1fa1423",
    "data_batch_5.webp": "1fe6b2ad20cc1be8c008c9220688f84f46c807fa2544838383f085f74be4f0bb",
    "test_batch.webp": "57f158650b17dac2bbb88f5f96a80ea65116bc0bf60c7ceef0d7ad2525dcf2f2",
    "train-labels-idx1-ubyte.gz": "410199ecd3cfee5000de2a5f8c844f13661a9ed891b35b40f06f97d155e6504b",
    "test-labels-idx1-ubyte.gz": "c972da06aba2897f33e547779bae338551f62d9035e67bc47003d3fbb7287b92",
    "train-labels-idx1-ubyte": "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
    "test-labels-idx1-ubyte": "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
}

# Of the records (a label byte, then 3,072 pixel bytes) of each batch, whichever layout they were read from. They are
# the digests of the six files of the public binary version.
CIFAR10_RECORDS = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

IMDB = {
    "train.jsonl.xz": "a0c834e3feaa57b76858305712d3172f22fcf580f0de7adf31cf0d8f65ba83a5",
    "test.jsonl.xz": "314b5b38e5e7960c9299b73e4f438ac1e18806be78f51275a1dfc32c5ef52474",
}
