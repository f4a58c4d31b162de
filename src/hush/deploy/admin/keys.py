"""Certificates and keys: a CA for one federation, its server's certificate, and a key pair for every member.

The CA signs server certificates only. Members are identified by their public keys (ECDSA, P-384), which the coordinator
lists. Files with secrets are created with mode 0600.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hush.types import HushError

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey
Buffer: TypeAlias = bytes | bytearray | memoryview
_BACKDATED = datetime.timedelta(minutes=10)  # so that clocks that are slightly behind accept it


def new_key() -> PrivateKey:
    """Generate a key pair."""
    made: PrivateKey = ec.generate_private_key(ec.SECP384R1())
    return made


def new_secret() -> str:
    """Generate a random secret of 256 bits, with the same generator as the keys."""
    return hashlib.sha256(private_pem(new_key())).hexdigest()


def private_pem(key: PrivateKey) -> bytes:
    """Serialise a private key in PEM."""
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def public_pem(key: PrivateKey | ec.EllipticCurvePublicKey) -> bytes:
    """Serialise the public key in PEM."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    pem: bytes = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def load_private(path: Path) -> PrivateKey:
    """Load a member's private key, which must not be readable by other users."""
    content = read(path, "a private key")
    if path.stat().st_mode & 0o077:
        raise HushError(
            f"{path}: accessible to other users (mode {path.stat().st_mode & 0o777:04o}); accepted: mode 0600"
        )
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise HushError(f"{path}: not a private key: {error}; accepted: PEM, ECDSA on P-384") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise HushError(f"{path}: unsupported key type; accepted: PEM, ECDSA on P-384")
    found: PrivateKey = key
    return found


def load_public(content: bytes, where: object) -> ec.EllipticCurvePublicKey:
    """Load a public key from PEM."""
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise HushError(f"{where}: not a public key: {error}; accepted: PEM, ECDSA on P-384") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise HushError(f"{where}: unsupported key type; accepted: PEM, ECDSA on P-384")
    return key


def fingerprint(key: PublicKey) -> str:
    """Return the SHA-256 of a public key in DER, which people can compare and policies list."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def signed(key: PrivateKey, *pieces: Buffer) -> bytes:
    """Sign content, given in pieces: the length of the signature, the signature, then the content."""
    signature: bytes = key.sign(_digest(*pieces), ec.ECDSA(utils.Prehashed(hashes.SHA384())))
    return b"".join((len(signature).to_bytes(2, "big"), signature, *pieces))


def opened(public: ec.EllipticCurvePublicKey, content: Buffer) -> memoryview:
    """Return the content, not copied, if this key signed it, or raise a `HushError`."""
    end = 2 + int.from_bytes(content[:2], "big")
    inner = memoryview(content)[end:]
    try:
        public.verify(bytes(content[2:end]), _digest(inner), ec.ECDSA(utils.Prehashed(hashes.SHA384())))
    except InvalidSignature:
        raise HushError("it is not signed by the member") from None
    return inner


def _digest(*pieces: Buffer) -> bytes:
    found = hashlib.sha384()
    for piece in pieces:
        found.update(piece)
    return found.digest()


def signature(key: PrivateKey, content: bytes) -> bytes:
    """Return a key's signature of content."""
    made: bytes = key.sign(content, ec.ECDSA(hashes.SHA384()))
    return made


def verified(public: PublicKey, signature: bytes, content: bytes) -> bool:
    """Whether a signature of content is by this key."""
    try:
        public.verify(signature, content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def make_authority(folder: Path, name: str, days: int) -> None:
    """Create a CA: `ca.crt` for everyone, `ca.key` for the coordinator."""
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} federation CA")])
    builder = _dated(x509.CertificateBuilder().subject_name(subject).issuer_name(subject), key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    write_secret(folder / "ca.key", private_pem(key))
    (folder / "ca.crt").write_bytes(_pem(builder.sign(key, hashes.SHA384())))


def make_server(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Create a server certificate for these hosts, signed by the CA in the same folder."""
    authority = x509.load_pem_x509_certificate(read(folder / "ca.crt", "the CA certificate"))
    signer, key = load_private(folder / "ca.key"), new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    builder = _dated(x509.CertificateBuilder().subject_name(subject).issuer_name(authority.subject), key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(sign=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    write_secret(folder / "server.key", private_pem(key))
    (folder / "server.crt").write_bytes(_pem(builder.sign(signer, hashes.SHA384())))


def renew_server(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Replace the server's certificate by a new one for these hosts and those of the former one."""
    former = _hosts(folder / "server.crt")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".renewed-") as made:
        for name in ("ca.crt", "ca.key"):
            content = read(folder / name, "a file of the CA")
            write_secret(Path(made) / name, content)
        make_server(Path(made), list(dict.fromkeys([*hosts, *former])), days)
        for name in ("server.key", "server.crt"):
            (Path(made) / name).replace(folder / name)


def _hosts(path: Path) -> list[str]:
    """The hosts that a certificate is for; none if there is no certificate."""
    try:
        names = _certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (HushError, x509.ExtensionNotFound):
        return []
    return [str(each.value) for each in names]


def make_signer(folder: Path, name: str, days: int = 3650) -> None:
    """Create the key that signs deliveries, with a certificate signed by the CA in the same folder."""
    authority = x509.load_pem_x509_certificate(read(folder / "ca.crt", "the CA certificate"))
    authority_key, key = load_private(folder / "ca.key"), new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} federation deliveries")])
    builder = _dated(x509.CertificateBuilder().subject_name(subject).issuer_name(authority.subject), key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(sign=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
    write_secret(folder / "signing.key", private_pem(key))
    (folder / "signing.crt").write_bytes(_pem(builder.sign(authority_key, hashes.SHA384())))


def signer(certificate: bytes, ca: bytes) -> PublicKey:
    """Return the key of a certificate for deliveries that the CA signed, or raise a `HushError`."""
    try:
        found, authority = (x509.load_pem_x509_certificate(each) for each in (certificate, ca))
        found.verify_directly_issued_by(authority)
        uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, InvalidSignature, x509.ExtensionNotFound, UnsupportedAlgorithm, TypeError):
        raise HushError("delivery: its certificate is not signed by the CA of this federation (ca.crt)") from None
    now = datetime.datetime.now(datetime.UTC)
    public = found.public_key()
    if ExtendedKeyUsageOID.CODE_SIGNING not in uses or not isinstance(public, ec.EllipticCurvePublicKey):
        raise HushError("delivery: its certificate is not one for deliveries of this federation")
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise HushError("delivery: its certificate has expired, or a clock is wrong")
    return public


def validity(path: Path) -> tuple[datetime.datetime, datetime.datetime]:
    """Return from when and until when a certificate is valid, in UTC."""
    found = _certificate(path)
    return found.not_valid_before_utc, found.not_valid_after_utc


def hosts(path: Path) -> tuple[str, ...]:
    """Return the names and addresses that a server's certificate is for; those of addresses with colons in brackets."""
    try:
        found = _certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise HushError(f"{path}: names no host; accepted: a certificate with subjectAltName") from None
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return (*found.get_values_for_type(x509.DNSName), *(f"[{each}]" if ":" in each else each for each in addresses))


def check_server(folder: Path) -> None:
    """Raise a `HushError` unless the server's certificate is valid now, matches its key, and is signed by the CA."""
    _certificate(folder / "ca.crt")
    found = _certificate(folder / "server.crt")
    read(folder / "server.key", "a certificate of this federation")
    _check_date(folder, found)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(folder / "server.crt", folder / "server.key", lambda: "")
    except (ssl.SSLError, OSError):
        raise HushError(
            f"{folder / 'server.key'}: does not match server.crt; create both again with hush federation renew"
        ) from None
    try:
        _greet(ssl.create_default_context(cafile=folder / "ca.crt"), server)
    except ssl.SSLError as error:
        raise HushError(
            f"{folder / 'server.crt'}: members will not trust it ({error.reason or error}); it must be signed by the "
            "CA in ca.crt: hush federation renew"
        ) from None


def _greet(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Run a TLS handshake between the two within this process."""
    client.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


def _check_date(folder: Path, found: x509.Certificate) -> None:
    now = datetime.datetime.now(datetime.UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise HushError(
            f"{folder / 'server.crt'}: valid from {found.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{found.not_valid_after_utc:%Y-%m-%d %H:%M}, and it is {now:%Y-%m-%d %H:%M} (UTC); "
            "renew it with hush federation renew, or correct the clock"
        )


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read(path, "a certificate of this federation"))
    except ValueError as error:
        raise HushError(f"{path}: not a certificate: {error}") from None


def write_secret(path: Path, content: bytes) -> None:
    """Create a file with mode 0600; an existing file is never replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise HushError(f"{path}: already exists; accepted: a new path") from None
    except OSError as error:
        raise HushError(f"{path}: cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, what: str) -> bytes:
    """Read a file, or raise a `HushError` that says what it should contain."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise HushError(f"{path}: not found; expected {what}") from None
    except OSError as error:
        raise HushError(f"{path}: cannot be read: {error.strerror}; expected {what}") from None


def _pem(certificate: x509.Certificate) -> bytes:
    pem: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return pem


def _dated(builder: x509.CertificateBuilder, key: PrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    serial = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return serial.not_valid_before(now - _BACKDATED).not_valid_after(now + datetime.timedelta(days=days))


def _usage(sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=sign, crl_sign=sign, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
